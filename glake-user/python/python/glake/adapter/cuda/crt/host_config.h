/* See host_defines.h. */
