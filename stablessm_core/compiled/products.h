/* Products of small matrices in single precision whose columns come in vectors of 16, for operands that lie in the caches: c = a b
 * or c += a b. Element (i, k) of a lies at a[i * a_row + k * a_step], so that a transposed one is no other case; rows of b and c are
 * b_step and c_row apart. Each number is one chain of a*b+c over k in order: neither tiles nor widths of registers show. */

/* rows and vectors of a tile: as many sums as there are registers for */
#if defined(__AVX512F__)
#define TILE_ROWS 8
#define TILE_VECTORS 2
#elif defined(__AVX2__) || defined(__aarch64__)
#define TILE_ROWS 6
#define TILE_VECTORS 1
#else
#define TILE_ROWS 2
#define TILE_VECTORS 1
#endif

typedef struct {
    const float *a, *b;
    float *c;
    long a_row, a_step, b_step, c_row, depth;
    int add;
} product_job;

INLINE void product_tile(const int R, const int V, const product_job *j, long i, long n) {
    const float *a = j->a + i * j->a_row, *b = j->b + n;
    float *c = j->c + i * j->c_row + n;
    const long a_row = j->a_row, a_step = j->a_step, b_step = j->b_step, c_row = j->c_row;
    floats sum[TILE_ROWS][TILE_VECTORS], x[TILE_VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sum[r][v] = j->add ? load_floats(c + r * c_row + 16 * v, 16) : (floats){0};
    for (long k = j->depth; k > 0; k--, a += a_step, b += b_step) {
        for (int v = 0; v < V; v++) x[v] = load_floats(b + 16 * v, 16);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sum[r][v] += a[r * a_row] * x[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store_floats(c + r * c_row + 16 * v, sum[r][v], 16);
}

#define PRODUCT(R, V) \
    static NOINLINE void product_##R##V(const product_job *j, long i, long n) { product_tile(R, V, j, i, n); }
#if TILE_VECTORS == 2
PRODUCT(8, 2) PRODUCT(4, 2) PRODUCT(2, 2) PRODUCT(1, 2)
PRODUCT(8, 1) PRODUCT(4, 1)
#elif TILE_ROWS == 6
PRODUCT(6, 1) PRODUCT(4, 1)
#endif
PRODUCT(2, 1) PRODUCT(1, 1)
static const struct {
    int rows;
    void (*make[TILE_VECTORS])(const product_job *, long, long);
} products[] = {
#if TILE_VECTORS == 2
    {8, {product_81, product_82}}, {4, {product_41, product_42}}, {2, {product_21, product_22}}, {1, {product_11, product_12}},
#elif TILE_ROWS == 6
    {6, {product_61}}, {4, {product_41}}, {2, {product_21}}, {1, {product_11}},
#else
    {2, {product_21}}, {1, {product_11}},
#endif
};

/* c (rows, columns); columns a multiple of 16 */
static void product(const product_job *j, long rows, long columns) {
    for (long n = 0, vectors; n < columns; n += 16 * vectors) {
        vectors = columns - n >= 16 * TILE_VECTORS ? TILE_VECTORS : 1;
        int size = 0;
        for (long i = 0; i < rows; i += products[size].rows) {
            while (rows - i < products[size].rows) size++;
            products[size].make[vectors - 1](j, i, n);
        }
    }
}

/* y (rows, n) = or += x (rows, k) w, with w (k, n) */
static void times(long rows, long k, long n, const float *x, const float *w, float *y, int add) {
    product_job j = {.a = x, .b = w, .c = y, .a_row = k, .a_step = 1, .b_step = n, .c_row = n, .depth = k, .add = add};
    product(&j, rows, n);
}

/* sum (n, k) += dy^T x, with dy (rows, n) and x (rows, k) */
static void add_weight_gradient(long rows, long n, long k, const float *dy, const float *x, float *sum) {
    product_job j = {.a = dy, .b = x, .c = sum, .a_row = 1, .a_step = n, .b_step = k, .c_row = k, .depth = rows, .add = 1};
    product(&j, n, k);
}

/* to (columns, rows) = from^T, each row of `from` multiplied by its gain; to_row: how far rows of `to` are apart */
static void transpose(long rows, long columns, const float *from, const float *gain, float *to, long to_row) {
    for (long i = 0; i < rows; i++)
        for (long k = 0; k < columns; k++) to[k * to_row + i] = gain ? gain[i] * from[i * columns + k] : from[i * columns + k];
}
