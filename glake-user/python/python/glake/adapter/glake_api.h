/* What the allocator core offers to the torch adapter: one table of functions, handed over by address. The core is Rust, inside
 * the Python module; the adapter is C++, built against the installed torch. Neither links the other.
 *
 * No function throws, exits, prints to stdout or panics across this line. Each that can fail returns a glake_status and leaves a
 * text for `last_error` of the same thread. All may be called from any thread; `find` and `owns` take no lock that an allocation waits
 * for the driver with. Sizes are bytes, streams are cudaStream_t as an integer (0: the legacy default stream), devices are CUDA
 * ordinals as the process sees them.
 */
#ifndef GLAKE_API_H
#define GLAKE_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function changes or goes; `size` grows when one is added at the end. */
#define GLAKE_API_VERSION 1u

typedef enum glake_status {
  GLAKE_OK = 0,
  GLAKE_OUT_OF_MEMORY = 1, /* the device or a limit has no more: nothing changed */
  GLAKE_MISUSE = 2,        /* a pointer that is not this heap's, a wrong argument */
  GLAKE_DEVICE_LOST = 3,   /* nothing on this device works any more */
  GLAKE_OFF = 4,           /* GLake is off here (mode, option, fork, earlier failure): use your own allocator */
  GLAKE_FAILED = 5         /* anything else: use your own allocator for this one */
} glake_status;

/* A quantity as torch's Stat keeps it. */
typedef struct glake_level {
  uint64_t current, peak, allocated, freed;
} glake_level;

/* Counters of one device's heap; torch's words and meanings. */
typedef struct glake_stats {
  glake_level allocated;  /* bytes handed out, rounded to 512 */
  glake_level requested;  /* bytes asked for */
  glake_level active;     /* handed out, or waiting for another stream */
  glake_level reserved;   /* physical memory held: used, idle, ahead, waiting to be unmapped */
  glake_level blocks;     /* blocks handed out */
  uint64_t remapped_bytes, zombie_bytes, largest_free, free;
  uint64_t driver_calls, driver_ns;           /* while an allocation or a free waited */
  uint64_t background_calls, background_ns;   /* by the reclaimer */
  uint64_t waits, ooms, ooms_avoided, fallbacks;
} glake_stats;

/* A mapped run of addresses, or a block in it. `state`: 0 free, 1 allocated, 2 waiting for another stream. */
typedef struct glake_range {
  uint64_t address, size, requested, stream;
  uint32_t state;
  uint32_t small_pool; /* 1: of the pool of blocks below 1 MiB */
} glake_range;

/* Called once per range in address order; ranges of one mapped run follow each other without a gap. */
typedef void (*glake_range_visitor)(void *context, const glake_range *range);

/* Gives back memory held elsewhere (torch's own pools, its callbacks); returns the bytes it freed, 0 if none. */
typedef uint64_t (*glake_pressure)(void *context, int32_t device, uint64_t wanted);

typedef struct glake_api {
  uint32_t version; /* GLAKE_API_VERSION */
  uint32_t size;    /* of this struct */

  /* The text of this thread's last failure, with its remedy, NUL-terminated; returns its whole length. Valid input: any n. */
  size_t (*last_error)(char *text, size_t n);

  /* Makes the heap of `device` ready; its primary context must exist. Repeating is harmless. */
  glake_status (*open)(int32_t device);

  glake_status (*allocate)(int32_t device, uint64_t size, uint64_t stream, uint64_t *address, uint64_t *rounded);
  /* `stream`: the one the block was allocated for. */
  glake_status (*free)(int32_t device, uint64_t address, uint64_t stream);
  glake_status (*record_stream)(int32_t device, uint64_t address, uint64_t stream);

  /* Whether the address lies in address space of a GLake heap of this process. Never fails, takes no lock. */
  int32_t (*owns)(uint64_t address);
  /* The block that holds `address` (an inner address too): its start, its size as requested, its device. GLAKE_MISUSE: none. */
  glake_status (*find)(uint64_t address, uint64_t *start, uint64_t *size, int32_t *device);

  /* Pinned: never remapped nor unmapped until unpinned, also after its free (captured, registered, exported). */
  glake_status (*pin)(int32_t device, uint64_t address);
  glake_status (*unpin)(int32_t device, uint64_t address);
  /* Between the two no event is asked after, nothing is waited for and nothing is unmapped. They nest. */
  void (*begin_capture)(int32_t device);
  void (*end_capture)(int32_t device);

  /* Returns idle physical memory to the driver; `freed` may be NULL. */
  glake_status (*trim)(int32_t device, uint64_t *freed);
  /* A limit on what the heap of `device` may hold; UINT64_MAX: none. `allocator.max_bytes` goes on to hold beside it. */
  glake_status (*set_max_bytes)(int32_t device, uint64_t bytes);
  glake_status (*on_pressure)(int32_t device, glake_pressure ask, void *context);
  glake_status (*enable_peer)(int32_t device, int32_t peer);

  glake_status (*stats)(int32_t device, glake_stats *stats);
  void (*reset_peaks)(int32_t device);
  void (*reset_accumulated)(int32_t device);
  glake_status (*ranges)(int32_t device, glake_range_visitor visit, void *context);

  /* The physical handles under the block that holds `address`, as POSIX file descriptors, in address order: writes at most `room`
   * descriptors with their sizes, and their number. The caller closes each. `offset`: of `address` in the first. The block is pinned
   * until its free. More handles than `room`: GLAKE_FAILED, `count` says how many, none is left open. */
  glake_status (*export_block)(int32_t device, uint64_t address, int32_t *fds, uint64_t *sizes, uint32_t room, uint32_t *count,
                               uint64_t *offset);
  /* Maps such descriptors as one range, in this or another process; they may be closed afterwards. */
  glake_status (*import_block)(int32_t device, const int32_t *fds, const uint64_t *sizes, uint32_t count, uint64_t *address);
  glake_status (*close_import)(int32_t device, uint64_t address);

  /* One line for the user, once per process and `key`, on stderr (what GLAKE_LOG makes of it). */
  void (*say_once)(const char *key, const char *line);

  /* Bytes of physical memory the heap of `device` holds now; 0 before it is opened. One load, no lock: asked after every allocation. */
  uint64_t (*reserved)(int32_t device);
} glake_api;

#ifdef __cplusplus
}
#endif
#endif
