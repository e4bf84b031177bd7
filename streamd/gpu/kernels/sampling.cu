// Temporal sampling on the block graph (GNNFlow, section 4.2). The layout and the rules are those of
// streamd/graph/blocks/kernels.py and streamd/graph/blocks/sampling_kernels.py; every argument is eight bytes wide, so that any launcher can
// pass them in the same way.
//
// One thread finds one neighbor of one root, and the threads of a root are adjacent: they read the same directory at the
// same time, so a warp fetches each descriptor once and stores to consecutive addresses. A thread keeps its block's
// descriptor in registers.

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned char u8;

#define GONE 0xFFFFFFFFLL
#define SPAN 0x7FFFFFFFLL
#define DEGREE 2
#define DIRECTORY 3
#define MAX_FANOUT 128

// The structs of streamd/graph/blocks/kernels.py. A kernel's arguments are their fields in order.
struct Graph {
    const i64 *nodes, *blocks, *entries;
    const u8* hidden;
    i64 tau, shift;
};

struct Query {
    const i64 *root, *since, *before;
    i64 num_roots, num_nodes, first, replace, seed;
};

struct Sampled {
    i64 *neighbor, *event;
    u8 *mask, *missing;
    i64 k;
};

#define KERNEL(name)                                                                                          \
    __device__ static inline void name##_of(const Graph& g, const Query& q, const Sampled& out, i64 at);      \
    extern "C" __global__ void name(                                                                          \
        const i64* nodes, const i64* blocks, const i64* entries, const u8* hidden, i64 tau, i64 shift,        \
        const i64* root, const i64* since, const i64* before, i64 num_roots, i64 num_nodes, i64 first,        \
        i64 replace, i64 seed, i64* neighbor, i64* event, u8* mask, u8* missing, i64 k) {                     \
        const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;                                            \
        if (at >= num_roots * k) return;                                                                      \
        name##_of({nodes, blocks, entries, hidden, tau, shift},                                               \
                  {root, since, before, num_roots, num_nodes, first, replace, seed},                          \
                  {neighbor, event, mask, missing, k}, at);                                                   \
    }                                                                                                         \
    __device__ static inline void name##_of(const Graph& g, const Query& q, const Sampled& out, i64 at)

__device__ static inline i64 bit_length(i64 x) { return 64 - __clzll(x); }

__device__ static inline i64 num_blocks(const Graph& g, i64 degree) {
    if (degree > g.tau) return g.shift + ((degree + g.tau - 1) >> g.shift);
    return degree > 1 ? 1 + bit_length(degree - 1) : degree;
}

__device__ static inline i64 entries_before(const Graph& g, i64 block) {
    if (block > g.shift) return (block - g.shift) << g.shift;
    return block > 0 ? 1LL << (block - 1) : 0;
}

__device__ static inline i64 block_of(const Graph& g, i64 number) {
    return number >= g.tau ? g.shift + (number >> g.shift) : bit_length(number);
}

// The first event of a block of a node's directory, and the index of its first entry, ~index if it is offloaded.
__device__ static inline i64 first_of(const Graph& g, i64 slot) { return g.blocks[2 * slot]; }
__device__ static inline i64 place_of(const Graph& g, i64 slot) { return g.blocks[2 * slot + 1]; }

// Rows of an ascending table, [at, at + count), that are below `bound`; row i is table[step * i]; count is above 0.
__device__ static inline i64 rows_below(const i64* table, i64 step, i64 at, i64 count, i64 bound) {
    i64 low = at;
    while (count > 1) {
        const i64 half = count >> 1;
        low += table[step * (low + half - 1)] < bound ? half : 0;
        count -= half;
    }
    return low - at + (table[step * low] < bound);
}

// Entries of a node with an event id below `before`; -1 if the block that contains the bound is offloaded.
__device__ static inline i64 entries_below(const Graph& g, i64 node, i64 before) {
    const i64 degree = g.nodes[4 * node + DEGREE], at = g.nodes[4 * node + DIRECTORY];
    if (degree == 0) return 0;
    const i64 block = rows_below(g.blocks, 2, at, num_blocks(g, degree), before) - 1;
    if (block < 0) return 0;
    const i64 place = place_of(g, at + block);
    if (place < 0) return -1;
    const i64 count = entries_before(g, block), after = entries_before(g, block + 1);
    const i64 size = (after < degree ? after : degree) - count, span = before - first_of(g, at + block);
    return count + rows_below(g.entries, 1, place, size, (span < SPAN ? span : SPAN) << 32);
}

// A node's entry by its number, and its event; false if it is offloaded.
__device__ static inline bool entry_of(const Graph& g, i64 node, i64 number, i64* row, i64* event) {
    const i64 block = block_of(g, number), slot = g.nodes[4 * node + DIRECTORY] + block, place = place_of(g, slot);
    if (place < 0) return false;
    *row = g.entries[place + number - entries_before(g, block)];
    *event = first_of(g, slot) + (*row >> 32);
    return true;
}

__device__ static inline bool is_hidden(i64 row) { return (row & GONE) == GONE; }

__device__ static inline u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

__device__ static inline i64 below(u64 random, i64 bound) { return (i64)(((random >> 32) * (u64)bound) >> 32); }

// The j-th of the numbers chosen below `count`, count above k without replacement (Floyd 1987). Each thread repeats the
// draws before its own: a few multiplications; sharing them would make the threads of a root wait.
__device__ static inline i64 choice(u64 state, i64 count, i64 k, i64 replace, i64 j) {
    if (replace) return below(mixed(state + (u64)j), count);
    unsigned chosen[MAX_FANOUT];
    for (i64 i = 0; i <= j; ++i) {
        const i64 top = count - k + i;
        i64 pick = below(mixed(state + (u64)i), top + 1);
        for (i64 other = 0; other < i; ++other)
            if (chosen[other] == (unsigned)pick) {
                pick = top;
                break;
            }
        chosen[i] = (unsigned)pick;
    }
    return chosen[j];
}

__device__ static inline void store(const Sampled& out, i64 at, i64 row, i64 event, bool found) {
    out.neighbor[at] = found ? row & GONE : 0;
    out.event[at] = found ? event : 0;
    out.mask[at] = found;
}

// The k newest entries of each root with an event id in [since, before) that no delete hides, newest first. missing: set
// if an answer needs offloaded entries.
KERNEL(sample_recent) {
    const i64 r = at / out.k, node = q.root[r];
    i64 left = at % out.k, row = 0, event = 0;
    bool found = false;
    if (node >= 0 && node < q.num_nodes && q.since[r] < q.before[r]) {
        i64 number = entries_below(g, node, q.before[r]) - 1;
        if (number == -2) out.missing[r] = 1;
        const bool skips = g.hidden[node];
        if (!skips) {
            number -= left;
            left = 0;
        }
        while (number >= 0) {
            if (!entry_of(g, node, number, &row, &event)) {
                // The block after it begins with the first event that is not in this one.
                const i64 next = g.nodes[4 * node + DIRECTORY] + block_of(g, number) + 1;
                if (q.since[r] < first_of(g, next)) out.missing[r] = 1;
                break;
            }
            if (event < q.since[r]) break;
            if (!skips || !is_hidden(row)) {
                if (left == 0) {
                    found = true;
                    break;
                }
                --left;
            }
            --number;
        }
    }
    store(out, at, row, event, found);
}

// k entries of each root drawn uniformly among those with an event id in [since, before) that no delete hides; without
// replacement all of them if there are at most k. A draw is a hash of seed, node, the query's end and its number, as on
// the CPU.
KERNEL(sample_uniform) {
    const i64 r = at / out.k, j = at % out.k, node = q.root[r];
    i64 row = 0, event = 0;
    bool found = false;
    if (node >= 0 && node < q.num_nodes && q.since[r] < q.before[r]) {
        const i64 begin = q.since[r] > q.first ? entries_below(g, node, q.since[r]) : 0;
        const i64 end = entries_below(g, node, q.before[r]);
        if (begin < 0 || end < 0 || (begin < end && !entry_of(g, node, begin, &row, &event))) {
            out.missing[r] = 1;
        } else if (begin < end) {
            u64 state = mixed((u64)q.seed + 0x9E3779B97F4A7C15ULL * (u64)(node + 1));
            state = mixed(state + (u64)q.before[r]);
            i64 count = end - begin;
            if (g.hidden[node]) {
                count = 0;
                for (i64 number = begin; number < end; ++number) {
                    entry_of(g, node, number, &row, &event);
                    count += !is_hidden(row);
                }
            }
            const bool all = !q.replace && count <= out.k;
            if (count > 0 && (!all || j < count)) {
                i64 number = all ? count - 1 - j : choice(state, count, out.k, q.replace, j);
                if (g.hidden[node]) {
                    i64 left = number;
                    for (number = begin;; ++number) {
                        entry_of(g, node, number, &row, &event);
                        if (!is_hidden(row) && left-- == 0) break;
                    }
                } else {
                    entry_of(g, node, begin + number, &row, &event);
                }
                found = true;
            }
        }
    }
    store(out, at, row, event, found);
}
