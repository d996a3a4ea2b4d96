/* Products of small float32 matrices that fit into the caches: c = a b or c += a b. The number of columns is a multiple of 16.
 * Element (i, k) of a is a[i * a_row + k * a_step], so a may be transposed; b_step and c_row are the distances between rows of
 * b and of c. Each element of c is summed over k in order, so the bits of c depend neither on the tiles nor on the width of
 * registers. */

/* number of rows in a tile and number of vectors in each row, chosen so that all sums of a tile fit into the registers */
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

/* computes c (rows, columns); `columns` must be a multiple of 16 */
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

/* y (rows, n) = x (rows, k) w (k, n); with `add`, the product is added to y */
static void matmul(long rows, long k, long n, const float *x, const float *w, float *y, int add) {
    product_job j = {.a = x, .b = w, .c = y, .a_row = k, .a_step = 1, .b_step = n, .c_row = n, .depth = k, .add = add};
    product(&j, rows, n);
}

/* sum (n, k) += dy^T x, with dy (rows, n) and x (rows, k) */
static void add_weight_gradient(long rows, long n, long k, const float *dy, const float *x, float *sum) {
    product_job j = {.a = dy, .b = x, .c = sum, .a_row = 1, .a_step = n, .b_step = k, .c_row = k, .depth = rows, .add = 1};
    product(&j, n, k);
}

/* to (columns, rows) = from^T, where each row of `from` is multiplied by its gain unless `gain` is NULL; to_row: the distance
 * between rows of `to` */
static void transpose(long rows, long columns, const float *from, const float *gain, float *to, long to_row) {
    for (long i = 0; i < rows; i++)
        for (long k = 0; k < columns; k++) to[k * to_row + i] = gain ? gain[i] * from[i * columns + k] : from[i * columns + k];
}
