//! The stitching allocator. Plans are pure values, then applied.
