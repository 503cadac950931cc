// The inner loops for AVX-512 with BW, VL and VBMI; this file alone is compiled with them.

#if defined(__x86_64__)

#include "resample_vectors.h"
#include "vectors_avx512.h"

namespace feeder {

const Level kAvx512Level = kVectorLevel<Avx512>;

}  // namespace feeder

#endif
