/* Vectors of WIDTH numbers in three types: STORAGE in memory, COMPUTE for activations, double for states. This file is included
 * once per dtype and width. The width does not depend on the compiler's flags: a processor with narrower registers processes a
 * vector in parts and computes the same bits. FORMAT is the format of STORAGE: 0 means the same format as COMPUTE, 1 means
 * bfloat16 and 2 means float16 (both 16 bits). */

typedef COMPUTE N(vec) __attribute__((vector_size(WIDTH * sizeof(COMPUTE))));
typedef STORAGE N(raw) __attribute__((vector_size(WIDTH * sizeof(STORAGE)), aligned(sizeof(STORAGE)), may_alias));
typedef double N(wide) __attribute__((vector_size(WIDTH * sizeof(double))));
typedef double N(wide_raw) __attribute__((vector_size(WIDTH * sizeof(double)), aligned(sizeof(double)), may_alias));
#define V N(vec)
#define W N(wide)

/* GCC 12 splits the generic forms of these conversions into single elements, so conversions of eight numbers use intrinsics */
#define NAMED (WIDTH == 8 && defined(__AVX512F__) && defined(__AVX512VL__))

INLINE V N(load)(const STORAGE *p) {
#if FORMAT == 0
    return (V) * (const N(raw) *)p;
#elif FORMAT == 1 && NAMED
    return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#elif FORMAT == 2 && NAMED
    return (V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
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
#if NAMED
    return (N(raw))_mm256_cvtepi32_epi16((__m256i)x);
#else
    typedef uint16_t low __attribute__((vector_size(WIDTH * 2)));
    return (N(raw))__builtin_convertvector(x, low);
#endif
#elif NAMED
    return (N(raw))_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#else
    typedef _Float16 half __attribute__((vector_size(WIDTH * 2)));
    return (N(raw))__builtin_convertvector(v, half);
#endif
}

INLINE void N(store)(STORAGE *p, V v) { *(N(raw) *)p = N(rounded)(v); }

/* Without AVX-512, GCC splits conversions and shuffles of 64 bytes into single elements, but not conversions and shuffles of 32
 * bytes. So with AVX, each vector of 64 bytes is processed in two halves. */
#define IN_HALVES (WIDTH == 8 && defined(__AVX__) && !defined(__AVX512F__))
#if IN_HALVES
typedef union {
    W all;
    __m256d half[2];
} N(halves);

INLINE W N(joined)(__m256d low, __m256d high) {
    const N(halves) u = {.half = {low, high}};
    return u.all;
}

INLINE __m256d N(half)(W v, int which) {
    const N(halves) u = {v};
    return u.half[which];
}
#endif

/* store, bypassing the caches; p must be aligned to the vector's size */
INLINE void N(stream)(STORAGE *p, V v) {
#if WIDTH == 8 && STREAMS && NARROW
    _mm256_stream_ps(p, (__m256)v);
#elif WIDTH == 8 && STREAMS && defined(__AVX512F__)
    _mm512_stream_pd(p, (__m512d)v);
#elif WIDTH == 8 && STREAMS
    _mm256_stream_pd(p, N(half)(v, 0));
    _mm256_stream_pd(p + 4, N(half)(v, 1));
#else
    N(store)(p, v);
#endif
}

INLINE W N(widen)(V v) {
#if NARROW && NAMED
    return (W)_mm512_cvtps_pd((__m256)v);
#elif NARROW && IN_HALVES
    const __m128 low = _mm256_castps256_ps128((__m256)v), high = _mm256_extractf128_ps((__m256)v, 1);
    return N(joined)(_mm256_cvtps_pd(low), _mm256_cvtps_pd(high));
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
#if IN_HALVES
#define HALF(v, which, i, j) _mm256_permute_pd(N(half)(v, which), (i) | (j) << 1 | (i) << 2 | (j) << 3)
#define PICK(v, i, j) N(joined)(HALF(v, 0, i, j), HALF(v, 1, i, j))
#define PAIRS(x, y) {x, y, x, y, x, y, x, y}
#elif WIDTH == 8
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
