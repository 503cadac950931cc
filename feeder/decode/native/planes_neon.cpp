// Planes for NEON, which every ARM of 64 bits has.

#if defined(__aarch64__)

#include "planes_vectors.h"
#include "vectors_neon.h"

namespace feeder {

const Planes kNeonPlanes = {idct_islow<Neon>, plain::idct_dc};

}  // namespace feeder

#endif
