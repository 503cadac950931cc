// The inner loops for SSE4.1; this file alone is compiled with -msse4.1.

#if defined(__x86_64__)

#include "resample_vectors.h"
#include "vectors_sse4.h"

namespace feeder {

const Level kSse4Level = kVectorLevel<Sse4>;

}  // namespace feeder

#endif
