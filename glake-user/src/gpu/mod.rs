//! A GPU as verbs: reserve, create, map, set access, unmap, release, copy, event.
