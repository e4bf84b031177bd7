// Temporal sampling on the block graph (GNNFlow, section 4.2). The layout and the rules are those of
// streamd/graph/kernels.py and streamd/graph/sampling.py; every argument is eight bytes wide, so that any launcher can
// pass them alike.
//
// One thread finds one neighbour of one root, and the threads of a root lie side by side: they read the same directory at
// the same time, so a warp fetches each descriptor once, and what they store lies in a row. A thread keeps its block's
// descriptor in registers.

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned char u8;

#define GONE 0xFFFFFFFFLL
#define DEGREE 2
#define DIRECTORY 3
#define MAX_FANOUT 128

struct Graph {
    const i64* nodes;
    const i64* blocks;
    const i64* entries;
    i64 tau, shift;
};

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

// Rows of the ascending table[at : at + count] with an edge id below `cutoff`; count is above 0.
__device__ static inline i64 rows_below(const i64* table, i64 at, i64 count, i64 cutoff) {
    const i64 bound = cutoff << 32;
    i64 low = at;
    while (count > 1) {
        const i64 half = count >> 1;
        low += table[low + half - 1] < bound ? half : 0;
        count -= half;
    }
    return low - at + (table[low] < bound);
}

// Entries of a node with an edge id below `cutoff`.
__device__ static inline i64 entries_below(const Graph& g, i64 node, i64 cutoff) {
    const i64 degree = g.nodes[4 * node + DEGREE], at = g.nodes[4 * node + DIRECTORY];
    if (degree == 0) return 0;
    const i64 block = rows_below(g.blocks, at, num_blocks(g, degree), cutoff) - 1;
    if (block < 0) return 0;
    const i64 before = entries_before(g, block), after = entries_before(g, block + 1);
    const i64 size = (after < degree ? after : degree) - before;
    return before + rows_below(g.entries, g.blocks[at + block] & GONE, size, cutoff);
}

// A node's entry by its number.
__device__ static inline i64 entry_of(const Graph& g, i64 node, i64 number) {
    const i64 block = block_of(g, number);
    const i64 start = g.blocks[g.nodes[4 * node + DIRECTORY] + block] & GONE;
    return g.entries[start + number - entries_before(g, block)];
}

__device__ static inline u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

__device__ static inline i64 below(u64 random, i64 bound) { return (i64)(((random >> 32) * (u64)bound) >> 32); }

// The j-th of the numbers chosen below `count`, count above k where without replacement (Floyd 1987). Each thread makes the
// draws before its own again: a few multiplications, where sharing them would have the threads of a root wait.
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

__device__ static inline void store(i64 at, i64 row, bool found, i64 first_edge, i64* neighbor, i64* eid, u8* mask) {
    neighbor[at] = found ? row & GONE : 0;
    eid[at] = found ? (row >> 32) + first_edge : 0;
    mask[at] = found;
}

// The k newest entries of each root with an edge id in [since, cutoff) that no delete hides, newest first. incomplete: set to
// 1 where an answer needs entries below `resident`, which were offloaded.
extern "C" __global__ void sample_recent(
    const i64* nodes, const i64* blocks, const i64* entries, const u8* hidden, i64 tau, i64 shift, i64 num_nodes,
    i64 first_edge, i64 resident, const i64* root, const i64* since, const i64* cutoff, i64 num_roots, i64 k,
    i64* neighbor, i64* eid, u8* mask, i64* incomplete) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= num_roots * k) return;
    const Graph g = {nodes, blocks, entries, tau, shift};
    const i64 r = at / k, j = at % k, node = root[r];
    i64 row = 0;
    bool found = false;
    if (node >= 0 && node < num_nodes) {
        i64 number = entries_below(g, node, cutoff[r]) - 1;
        const bool skips = hidden[node];
        i64 left = j;
        if (!skips) {
            number -= left;
            left = 0;
        }
        while (number >= 0) {
            row = entry_of(g, node, number);
            const i64 edge = row >> 32;
            if (edge < resident && since[r] < resident) {
                *incomplete = 1;
                break;
            }
            if (edge < since[r]) break;
            if (!skips || (row & GONE) != GONE) {
                if (left == 0) {
                    found = true;
                    break;
                }
                --left;
            }
            --number;
        }
    }
    store(at, row, found, first_edge, neighbor, eid, mask);
}

// k entries of each root drawn uniformly among those with an edge id in [since, cutoff) that no delete hides; without
// replacement all of them where there are at most k. A draw is a hash of seed, node, cutoff and its number, as on the CPU.
extern "C" __global__ void sample_uniform(
    const i64* nodes, const i64* blocks, const i64* entries, const u8* hidden, i64 tau, i64 shift, i64 num_nodes,
    i64 first_edge, i64 resident, const i64* root, const i64* since, const i64* cutoff, i64 num_roots, i64 k,
    i64 replace, i64 seed, i64* neighbor, i64* eid, u8* mask, i64* incomplete) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= num_roots * k) return;
    const Graph g = {nodes, blocks, entries, tau, shift};
    const i64 r = at / k, j = at % k, node = root[r];
    i64 row = 0;
    bool found = false;
    if (node >= 0 && node < num_nodes) {
        const i64 begin = since[r] > 0 ? entries_below(g, node, since[r]) : 0, end = entries_below(g, node, cutoff[r]);
        if (begin < end && since[r] < resident && entry_of(g, node, begin) >> 32 < resident) {
            *incomplete = 1;
        } else if (begin < end) {
            u64 state = mixed((u64)seed + 0x9E3779B97F4A7C15ULL * (u64)(node + 1));
            state = mixed(state + (u64)cutoff[r]);
            i64 count = end - begin;
            if (hidden[node]) {
                count = 0;
                for (i64 number = begin; number < end; ++number) count += (entry_of(g, node, number) & GONE) != GONE;
            }
            const bool all = !replace && count <= k;
            if (count > 0 && (!all || j < count)) {
                i64 number = all ? count - 1 - j : choice(state, count, k, replace, j);
                if (hidden[node]) {
                    i64 left = number;
                    for (number = begin;; ++number)
                        if ((entry_of(g, node, number) & GONE) != GONE && left-- == 0) break;
                } else {
                    number += begin;
                }
                row = entry_of(g, node, number);
                found = true;
            }
        }
    }
    store(at, row, found, first_edge, neighbor, eid, mask);
}
