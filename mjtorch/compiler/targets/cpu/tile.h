// What printed programs and the threads that run them agree on.
#include <stdint.h>

// An input or output tensor: element i of world b is data[i * element + b * world].
struct Array {
  void* data;
  int64_t element, world;
};
// Asked from time to time whether to stop, because of an interrupt: then what is computed no longer matters.
struct Watch {
  bool (*stopped)(Watch*);
};
// Computes what all worlds have in common, into memory of its own. watch: may be null
typedef void (*Common)(Array const* in, char* common, Watch* watch);
// Computes `count` worlds from `first` on, given that; of `places`, if there are any, those that stand there.
typedef void (*Tile)(Array const* in, Array const* out, int64_t first, int64_t count, int64_t const* places,
                     char* scratch, char const* common, Watch* watch);
