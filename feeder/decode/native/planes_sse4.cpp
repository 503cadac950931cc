// Planes for SSE4.1; this file alone is compiled with -msse4.1.

#if defined(__x86_64__)

#include "planes_vectors.h"
#include "vectors_sse4.h"

namespace feeder {

const Planes kSse4Planes = {idct_islow<Sse4>, plain::idct_dc};

}  // namespace feeder

#endif
