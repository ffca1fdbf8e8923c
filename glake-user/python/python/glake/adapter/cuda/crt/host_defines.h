/* For hosts that have the CUDA runtime's headers from its Python package alone: that package leaves this header out. Only what
 * cuda_runtime_api.h needs of it when a C++ compiler for the host reads it; searched last, so that CUDA's own wins where it is. */
#ifndef __HOST_DEFINES_H__
#define __HOST_DEFINES_H__

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __specialization_static static
#define __location__(a)
#define __annotate__(a)

#endif
