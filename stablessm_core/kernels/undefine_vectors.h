/* undefine the macros that vectors.h and scan_dtype.h define for one width */
#undef V
#undef W
#undef PICK
#undef PAIRS
#undef WIDTH
#undef N
