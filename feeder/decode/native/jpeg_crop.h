/* Decodes a window of a JPEG, resamples it and writes it to the caller's memory; or decodes its planes, which can be
 * resampled later, to the same pixels. Knows no Python.
 *
 * Ownership: the caller owns everything that it passes in; nothing is kept after a call returns, but the scratch
 * memory inside a feeder_decoder, which grows to what the largest image so far needed.
 * Threads: a feeder_decoder serves one call at a time; different decoders are independent. feeder_read_header needs
 * none and may be called anywhere.
 * Errors: every function returns a feeder_status; none prints, throws or exits.
 * Units: pixels and bytes. Windows are in pixels of the image at full size, whatever scale it is decoded at.
 */
#ifndef FEEDER_JPEG_CROP_H
#define FEEDER_JPEG_CROP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum feeder_status {
  FEEDER_OK = 0,
  /* Not for this kernel: another format, CMYK, a process or size that it refuses, or a header that it cannot read.
   * The caller looks at the bytes by its own means, and has the last word. */
  FEEDER_OTHER = 1,
  /* What had to be decoded for the window is damaged; the reason says how. */
  FEEDER_DAMAGED = 2,
  /* The window is not within the image, or not within the planes. */
  FEEDER_OUTSIDE = 3,
  FEEDER_NO_MEMORY = 4
} feeder_status;

typedef enum feeder_filter {
  FEEDER_BILINEAR = 0,
  FEEDER_BICUBIC = 1,    /* A = -0.5 */
  FEEDER_TF1_BICUBIC = 2 /* TensorFlow 1's resize_bicubic: A = -0.75, pixel centres at whole numbers, edges repeated;
                          * never antialiases */
} feeder_filter;

/* What out holds, and its bytes. */
typedef enum feeder_output {
  FEEDER_RGB = 0,   /* height x width x 3 */
  FEEDER_YUV420 = 1 /* height x width of Y, then height / 2 x width / 2 each of Cb and Cr, in full range as JFIF has it;
                     * height and width are even. Made of the pixels of FEEDER_RGB, chroma of the mean of 2x2 */
} feeder_output;

/* Instruction sets of the inner loops; all give the same pixels. A machine has FEEDER_PLAIN and others of its own kind. */
typedef enum feeder_level {
  FEEDER_PLAIN = 0,
  FEEDER_SSE4 = 1,
  FEEDER_AVX2 = 2,
  FEEDER_AVX512 = 3, /* with what came with Ice Lake and Zen 4: machines before lower their clock for it */
  FEEDER_NEON = 4
} feeder_level;

/* How far a request is carried out. Measurements stop early; then out is undefined. */
typedef enum feeder_stop {
  FEEDER_PIXELS = 0,
  FEEDER_PLANES = 1,  /* after the planes of the window */
  FEEDER_ENTROPY = 2, /* after their coefficients */
  FEEDER_LEARN = 3    /* after all coefficients of the image, for its seek points; window and out don't count */
} feeder_stop;

/* Bytes of an image's seek points, which are its own business; all zero: nothing is known. */
#define FEEDER_SEEK_BYTES 1000

/* What became of them: none or more of these. */
enum {
  FEEDER_SEEK_USED = 1,   /* parts of the image were passed over */
  FEEDER_SEEK_GREW = 2,   /* more was learned and stored */
  FEEDER_SEEK_REFUSED = 4 /* they contradict the image: it was decoded without them, and they were cleared */
};

/* Bounds on what one image may ask for, checked before memory is taken for it. */
typedef struct feeder_limits {
  uint64_t max_bytes;       /* encoded bytes */
  uint64_t max_pixels;      /* width x height */
  uint64_t max_scans;       /* scans of a file that has several */
  uint64_t max_scan_pixels; /* scans x width x height */
  int32_t libjpeg_only;     /* 1: no image is decoded without libjpeg; for comparisons, the pixels are the same */
} feeder_limits;

typedef struct feeder_header {
  int32_t width;      /* pixels, at least 1 */
  int32_t height;     /* pixels, at least 1 */
  int32_t components; /* 1 or 3 */
  int32_t one_scan;   /* 1: sequential Huffman coding in one scan, so that a part can be decoded alone */
} feeder_header;

/* Facts of an image's planes: samples of 8 bits of Y, Cb, Cr, or R, G, B, or luminance, as the file has them. */
typedef struct feeder_layout {
  int32_t components;    /* 1 or 3 */
  int32_t ycc;           /* 1: three components are Y, Cb and Cr */
  int32_t smooth;        /* 1: chroma is smoothed, as libjpeg does it */
  int32_t width, height; /* pixels of the whole image, at the scale that it was decoded at */
  struct {
    int32_t width, height;            /* samples of the whole plane */
    int32_t across, down;             /* pixels a sample: 1 to 4 */
    int32_t left, top, right, bottom; /* samples that are there; right and bottom are behind them */
  } plane[3];
} feeder_layout;

typedef struct feeder_planes {
  feeder_layout layout;
  uint8_t *samples[3]; /* of each plane, in rows without gaps */
} feeder_planes;

typedef struct feeder_request {
  const uint8_t *data; /* encoded bytes */
  size_t size;
  const feeder_planes *planes; /* not NULL: resample these, which were decoded at 1/reduction, and decode nothing */
  feeder_planes *keep; /* not NULL, and zeroed: gets the planes of the window, and out no pixels; the caller frees
                        * samples[0], whatever becomes of the request */
  int32_t x, y, width, height; /* window: x, y >= 0; width, height >= 1 */
  int32_t reduction;           /* 1, 2, 4 or 8: decode at 1/reduction and resample from there */
  int32_t flip;                /* 1: mirror left and right */
  feeder_filter filter;
  int32_t antialias; /* 1: the filter's support grows with the scale */
  feeder_output output;
  uint8_t *out;      /* rows without gaps; only final bytes are stored */
  int32_t out_height, out_width; /* pixels, at least 1 */
  feeder_stop stop;
  uint8_t *seek;         /* FEEDER_SEEK_BYTES bytes, or NULL. The result never depends on them while they are of this
                          * image. Others do no harm to memory, but not all of them are found out: callers bind points
                          * to the bytes by checksums */
  uint8_t *seek_outcome; /* FEEDER_SEEK_...; NULL where seek is */
} feeder_request;

/* Longest reason, with its final zero. */
#define FEEDER_REASON_BYTES 224

typedef struct feeder_decoder feeder_decoder;

/* The fastest level that this machine runs, and whether it runs a level. */
feeder_level feeder_best_level(void);
int32_t feeder_has_level(feeder_level level);

/* "plain", "sse4", "avx2", "avx512", "neon". */
const char *feeder_level_name(feeder_level level);

/* Makes a decoder; NULL when memory is short or the machine lacks the level. */
feeder_decoder *feeder_decoder_new(const feeder_limits *limits, feeder_level level);
void feeder_decoder_free(feeder_decoder *decoder);

/* Reads the markers up to the first scan: FEEDER_OK and *header, or FEEDER_OTHER. Takes no memory. */
feeder_status feeder_read_header(const uint8_t *data, size_t size, const feeder_limits *limits, feeder_header *header);

/* Carries out one request. On anything but FEEDER_OK the content of out is undefined, and reason (of
 * FEEDER_REASON_BYTES bytes) holds a short text, which is empty where the status says it all. */
feeder_status feeder_decode(feeder_decoder *decoder, const feeder_request *request, char *reason);

#ifdef __cplusplus
}
#endif

#endif
