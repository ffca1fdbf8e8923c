//! Test doubles of real memory that can refuse, lie, lag and drop.
