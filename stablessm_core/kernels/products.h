/* Products of small float32 matrices that fit into the caches: c = a b or c += a b. The number of columns is a multiple of 16.
 * Element (i, k) of a is a[i * a_row + k * a_step], so a may be transposed; b_step and c_row are the distances between rows of
 * b and of c. Each element of c is summed over k in order, so the bits of c depend neither on the tiles nor on the width of
 * registers. */

/* number of rows in the largest tile, chosen so that all sums of the tile fit into the registers: there are 16 or 32 of them */
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_ROWS 8
#else
#define TILE_ROWS 6
#endif
#define TILE_VECTORS 2 /* maximum number of vectors in a row of a tile */

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
        for (int v = 0; v < V; v++) sum[r][v] = j->add ? load_floats(c + r * c_row + LANES * v, LANES) : (floats){0};
    for (long k = j->depth; k > 0; k--, a += a_step, b += b_step) {
        for (int v = 0; v < V; v++) x[v] = load_floats(b + LANES * v, LANES);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sum[r][v] += a[r * a_row] * x[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store_floats(c + r * c_row + LANES * v, sum[r][v], LANES);
}

#define PRODUCT(R, V) \
    static NOINLINE void product_##R##V(const product_job *j, long i, long n) { product_tile(R, V, j, i, n); }
#define PRODUCTS(R) PRODUCT(R, 1) PRODUCT(R, 2)
#if TILE_ROWS == 8
PRODUCTS(8)
#else
PRODUCTS(6)
#endif
PRODUCTS(4) PRODUCTS(2) PRODUCTS(1)
static const struct {
    int rows;
    void (*make[TILE_VECTORS])(const product_job *, long, long);
} products[] = {
#if TILE_ROWS == 8
    {8, {product_81, product_82}},
#else
    {6, {product_61, product_62}},
#endif
    {4, {product_41, product_42}}, {2, {product_21, product_22}}, {1, {product_11, product_12}},
};

/* computes c (rows, columns); `columns` must be a multiple of 16 */
static void product(const product_job *j, long rows, long columns) {
    for (long n = 0, vectors; n < columns; n += LANES * vectors) {
        vectors = columns - n >= LANES * TILE_VECTORS ? TILE_VECTORS : 1;
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
