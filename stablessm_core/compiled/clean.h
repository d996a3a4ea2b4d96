/* forgets what vectors.h and scan.h defined for one width */
#undef V
#undef W
#undef NAMED
#undef IN_HALVES
#undef PICK
#undef HALF
#undef PAIRS
#undef WIDTH
#undef N
