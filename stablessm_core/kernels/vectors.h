/* Vectors of WIDTH numbers in three types: STORAGE in memory, COMPUTE for activations, double for states. This file is included
 * once per dtype and width. FORMAT is the format of STORAGE: 0 means the same format as COMPUTE, 1 means bfloat16 and 2 means
 * float16 (both 16 bits). */

typedef COMPUTE N(vec) __attribute__((vector_size(WIDTH * sizeof(COMPUTE))));
typedef STORAGE N(raw) __attribute__((vector_size(WIDTH * sizeof(STORAGE)), aligned(sizeof(STORAGE)), may_alias));
typedef double N(wide) __attribute__((vector_size(WIDTH * sizeof(double))));
typedef double N(wide_raw) __attribute__((vector_size(WIDTH * sizeof(double)), aligned(sizeof(double)), may_alias));
#define V N(vec)
#define W N(wide)

/* GCC 12 splits the generic forms of most conversions into parts, so these use intrinsics. Vectors of eight numbers exist only
 * with AVX-512, and vectors of four numbers only with AVX. */

INLINE V N(load)(const STORAGE *p) {
#if FORMAT == 0
    return (V) * (const N(raw) *)p;
#elif FORMAT == 1 && WIDTH == 8
    return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#elif FORMAT == 1 && WIDTH == 4
    return (V)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadu_si64(p)), 16);
#elif FORMAT == 2 && WIDTH == 8
    return (V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif FORMAT == 2 && WIDTH == 4
    return (V)_mm_cvtph_ps(_mm_loadu_si64(p));
#elif FORMAT == 1
    typedef uint32_t bits __attribute__((vector_size(WIDTH * 4)));
    return (V)(__builtin_convertvector(*(const N(raw) *)p, bits) << 16);
#else
    typedef _Float16 half __attribute__((vector_size(WIDTH * 2)));
    return __builtin_convertvector((half) * (const N(raw) *)p, V);
#endif
}

/* round to the nearest value, ties to even */
INLINE N(raw) N(rounded)(V v) {
#if FORMAT == 0
    return (N(raw))v;
#elif FORMAT == 1
    typedef uint32_t bits __attribute__((vector_size(WIDTH * 4)));
    bits x = (bits)v, nan = (bits)(v != v);
    x = ((x + 0x7fff + ((x >> 16) & 1)) >> 16 & ~nan) | (0x7fc0 & nan);
#if WIDTH == 8
    return (N(raw))_mm256_cvtepi32_epi16((__m256i)x);
#elif WIDTH == 4
    return (N(raw))_mm_cvtsi128_si64(_mm_packus_epi32((__m128i)x, (__m128i)x));
#else
    typedef uint16_t low __attribute__((vector_size(WIDTH * 2)));
    return (N(raw))__builtin_convertvector(x, low);
#endif
#elif WIDTH == 8
    return (N(raw))_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#elif WIDTH == 4
    return (N(raw))_mm_cvtsi128_si64(_mm_cvtps_ph((__m128)v, _MM_FROUND_TO_NEAREST_INT));
#else
    typedef _Float16 half __attribute__((vector_size(WIDTH * 2)));
    return (N(raw))__builtin_convertvector(v, half);
#endif
}

INLINE void N(store)(STORAGE *p, V v) { *(N(raw) *)p = N(rounded)(v); }

/* store, bypassing the caches; p must be aligned to the vector's size */
INLINE void N(stream)(STORAGE *p, V v) {
#if WIDTH == 8 && STREAMS && NARROW
    _mm256_stream_ps(p, (__m256)v);
#elif WIDTH == 8 && STREAMS
    _mm512_stream_pd(p, (__m512d)v);
#elif WIDTH == 4 && STREAMS && NARROW
    _mm_stream_ps(p, (__m128)v);
#elif WIDTH == 4 && STREAMS
    _mm256_stream_pd(p, (__m256d)v);
#else
    N(store)(p, v);
#endif
}

INLINE W N(widen)(V v) {
#if NARROW && WIDTH == 8
    return (W)_mm512_cvtps_pd((__m256)v);
#elif NARROW && WIDTH == 4
    return (W)_mm256_cvtps_pd((__m128)v);
#elif NARROW && WIDTH == 2 && defined(__SSE2__)
    return (W)_mm_cvtps_pd((__m128)_mm_cvtsi64_si128((int64_t)v));
#else
    return __builtin_convertvector(v, W);
#endif
}

INLINE V N(narrow)(W w) { return __builtin_convertvector(w, V); }

INLINE W N(load_wide)(const double *p) { return (W) * (const N(wide_raw) *)p; }

INLINE void N(store_wide)(double *p, W w) { *(N(wide_raw) *)p = (N(wide_raw))w; }

#if COMPLEX
/* a complex number is a pair of adjacent numbers (re, im) */
typedef int64_t N(lanes) __attribute__((vector_size(WIDTH * 8)));
#if WIDTH == 8
#define PICK(v, i, j) SHUFFLE(v, N(lanes), i, j, 2 + i, 2 + j, 4 + i, 4 + j, 6 + i, 6 + j)
#define PAIRS(x, y) {x, y, x, y, x, y, x, y}
#elif WIDTH == 4
#define PICK(v, i, j) SHUFFLE(v, N(lanes), i, j, 2 + i, 2 + j)
#define PAIRS(x, y) {x, y, x, y}
#else
#define PICK(v, i, j) SHUFFLE(v, N(lanes), i, j)
#define PAIRS(x, y) {x, y}
#endif
#endif

/* a as the factor of a product. For real numbers it is one vector. For complex numbers, one vector contains each real part
 * twice, and the other contains each imaginary part twice, with the signs that the product needs. */
typedef struct {
    W re;
#if COMPLEX
    W im;
#endif
} N(factor);

INLINE N(factor) N(factor_of)(V a, int conjugate) {
    N(factor) f;
    W w = N(widen)(a);
#if COMPLEX
    static const W plus = PAIRS(-1, 1), minus = PAIRS(1, -1);
    f.re = PICK(w, 0, 0);
    f.im = PICK(w, 1, 1) * (conjugate ? minus : plus);
#else
    (void)conjugate;
    f.re = w;
#endif
    return f;
}

/* f s + b */
INLINE W N(multiply_add)(N(factor) f, W s, W b) {
#if COMPLEX
    W swapped = PICK(s, 1, 0);
    return f.re * s + (f.im * swapped + b);
#else
    return f.re * s + b;
#endif
}

INLINE W N(multiply)(N(factor) f, W s) {
#if COMPLEX
    W swapped = PICK(s, 1, 0);
    return f.re * s + f.im * swapped;
#else
    return f.re * s;
#endif
}
