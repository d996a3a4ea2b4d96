/* undefine the macros that vectors.h and scan_dtype.h define for one width */
#undef V
#undef W
#undef NAMED
#undef IN_HALVES
#undef PICK
#undef HALF
#undef PAIRS
#undef WIDTH
#undef N
