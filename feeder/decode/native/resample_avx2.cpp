// The inner loops for AVX2; this file alone is compiled with -mavx2.

#if defined(__x86_64__)

#include "resample_vectors.h"
#include "vectors_avx2.h"

namespace feeder {

const Level kAvx2Level = kVectorLevel<Avx2>;

}  // namespace feeder

#endif
