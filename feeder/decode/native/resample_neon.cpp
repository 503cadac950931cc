// The inner loops for NEON, which every ARM of 64 bits has.

#if defined(__aarch64__)

#include "resample_vectors.h"
#include "vectors_neon.h"

namespace feeder {

const Level kNeonLevel = kVectorLevel<Neon>;

}  // namespace feeder

#endif
