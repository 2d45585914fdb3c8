/*COMMENT*/
// C's functions are all that is used: libstdc++ reads the whole of <cmath> behind this name, five times of what is needed.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*INTERFACE*/

// ---------------------------------------------------------------------------------------------------------------------
// Worlds per vector. All of a program's numbers are vectors with one entry per world.
/*LANES*/
#define N NAME_LANES
/*WIDE*/
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross the border of this file
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12.2, asked for -O3, takes loops apart in a wrong order.
#pragma GCC optimize("no-tree-loop-distribution", "no-tree-loop-distribute-patterns")
#endif

/*RUNTIME*/

// ---------------------------------------------------------------------------------------------------------------------
// The program.
#define run_tile NAME_run_tile
#define scratch_bytes NAME_scratch_bytes
#define run_common NAME_run_common
#define common_bytes NAME_common_bytes
#define lanes NAME_program_lanes
#define work_output NAME_program_work_output
namespace NAME_program __attribute__((visibility("hidden"))) {
/*PROGRAM*/
}  // namespace NAME_program

// ---------------------------------------------------------------------------------------------------------------------
// The interface.
namespace {

/*ARRAYS*/

const NAME_field FIELD[] = {
/*FIELDS*/
};
// Where the step reads and writes each field: the number of an input and of an output (-1: none). `initial` stands for an
// input that is not given.
const struct {
  int bytes, input, output;
  void const* initial;
} SLOT[] = {
/*SLOTS*/
};
/*COUNTS*/

// Memory of one thread, kept until the thread ends.
struct Scratch {
  char* data = nullptr;
  char* get(size_t size) {
    if (!data) data = (char*)aligned_alloc(64, ROUND(size));
    return data;
  }
  ~Scratch() { free(data); }
};

template <typename T>
void copy(Array const& to, Array const& from, int64_t size, int64_t count) {
  for (int64_t b = 0; b < count; ++b)
    for (int64_t i = 0; i < size; ++i)
      ((T*)to.data)[i * to.element + b * to.world] = ((T const*)from.data)[i * from.element + b * from.world];
}

void copy(int field, Array const& to, Array const& from, int64_t count) {
  switch (FIELD[field].type) {
    case 'f': return copy<float>(to, from, FIELD[field].size, count);
    case 'd': return copy<double>(to, from, FIELD[field].size, count);
    case 'l': return copy<int64_t>(to, from, FIELD[field].size, count);
    default: return copy<uint8_t>(to, from, FIELD[field].size, count);
  }
}

// Step `count` <= N worlds. Results go to scratch memory first: the state is read from where it is written to.
bool step_tile(void* const* given, int64_t first, int64_t count) {
  using namespace NAME_program;
  static thread_local Scratch scratch;
  int64_t need = scratch_bytes() + common_bytes();
  for (int k = 0; k < FIELDS; ++k)
    if (SLOT[k].output >= 0) need += ROUND((int64_t)FIELD[k].size * SLOT[k].bytes * N);
  char* next = scratch.get((size_t)need);
  if (!next) return false;
  char* common = next + scratch_bytes();
  next = common + common_bytes();

  Array user[FIELDS], in[INPUTS], out[OUTPUTS];
  for (int k = 0; k < FIELDS; ++k) {
    int64_t size = FIELD[k].size;
    user[k] = Array{given[k] ? (char*)given[k] + first * size * SLOT[k].bytes : nullptr, 1, size};
    if (SLOT[k].input >= 0) in[SLOT[k].input] = given[k] ? user[k] : Array{(void*)SLOT[k].initial, 1, 0};
    if (SLOT[k].output < 0) continue;
    out[SLOT[k].output] = Array{next, N, 1};
    next += ROUND(size * SLOT[k].bytes * N);
  }
  run_common(in, common, nullptr);
  run_tile(in, out, 0, count, nullptr, scratch.data, common, nullptr);
  for (int k = 0; k < FIELDS; ++k)
    if (SLOT[k].output >= 0 && user[k].data) copy(k, user[k], out[SLOT[k].output], count);
  return true;
}

}  // namespace

extern "C" {

int NAME_step(int first, int count, NAME_worlds const* w) {
  if (/*MISSING*/) return NAME_MISSING;
  if (first < 0 || count < 0) return NAME_RANGE;
  void* const given[] = {/*POINTERS*/};
  int failed = 0;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) reduction(| : failed) if (count > N)
#endif
  for (int k = 0; k < count; k += N)
    failed |= !step_tile(given, (int64_t)first + k, count - k < N ? count - k : N);
  return failed ? NAME_MEMORY : NAME_OK;
}

int NAME_reset(int first, int count, NAME_worlds const* w) {
  if (!w) return NAME_MISSING;
  if (first < 0 || count < 0) return NAME_RANGE;
  void* const given[] = {/*POINTERS*/};
  for (int k = 0; k < FIELDS; ++k) {
    int64_t size = FIELD[k].size;
    if (FIELD[k].kind == 's' && given[k])
      copy(k, Array{(char*)given[k] + first * size * SLOT[k].bytes, 1, size}, Array{(void*)SLOT[k].initial, 1, 0}, count);
  }
  return NAME_OK;
}

int NAME_fields(void) { return FIELDS; }
NAME_field const* NAME_get_field(int k) { return k >= 0 && k < FIELDS ? FIELD + k : nullptr; }
int NAME_lanes(void) { return N; }
/*GETTERS*/
}
