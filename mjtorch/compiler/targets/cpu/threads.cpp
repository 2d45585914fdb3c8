// Spread the tiles of a batch over threads. Which thread computes a tile changes nothing in it.
#include <stdint.h>
#include <stdlib.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

struct Array;
typedef void (*Tile)(Array const*, Array const*, int64_t first, int64_t count, char* scratch);

namespace {
// Scratch memory is kept between calls: fresh pages cost more than a small batch.
std::mutex mutex;
struct Block {
  char* data;
  int64_t size;
};
std::vector<Block> spare;

Block borrow(int64_t size) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < spare.size(); ++i)
      if (spare[i].size >= size) {
        Block b = spare[i];
        spare.erase(spare.begin() + i);
        return b;
      }
  }
  int64_t bytes = (size + 63) / 64 * 64 + 64;
  char* data = (char*)aligned_alloc(64, bytes);
  if (!data) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (Block b : spare) free(b.data);
      spare.clear();
    }
    data = (char*)aligned_alloc(64, bytes);
  }
  return {data, size};
}

void give_back(Block b) {
  std::lock_guard<std::mutex> lock(mutex);
  try {
    if (spare.size() < 64) {
      spare.push_back(b);
      return;
    }
  } catch (...) {
  }
  free(b.data);
}
}  // namespace

// Whether there was memory for it. Threads that do not start, or get no memory, are done without.
extern "C" int32_t run_batch(Tile tile, Array const* in, Array const* out, int64_t worlds, int64_t lanes,
                             int64_t scratch, int64_t threads) {
  int64_t tiles = (worlds + lanes - 1) / lanes;
  std::atomic<int64_t> next(0);
  auto work = [&](Block b) {
#if defined(__SSE2__)
    // Numbers below the normal range become zero: computing with them takes a hundred times as long.
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
#endif
    for (int64_t k; (k = next.fetch_add(1)) < tiles;) {
      int64_t first = k * lanes;
      tile(in, out, first, worlds - first < lanes ? worlds - first : lanes, b.data);
    }
    give_back(b);
#if defined(__SSE2__)
    _mm_setcsr(mode);
#endif
  };
  Block own = borrow(scratch);
  if (!own.data) return 0;
  std::vector<std::thread> others;
  try {
    for (int64_t t = 1; t < threads && t < tiles; ++t)
      others.emplace_back([&] {
        Block b = borrow(scratch);
        if (b.data) work(b);
      });
  } catch (...) {
  }
  work(own);
  for (auto& t : others) t.join();
  return 1;
}
