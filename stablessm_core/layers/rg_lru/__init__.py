"""RG-LRU, a real recurrence whose eigenvalues a gate raises to a power, in the recurrent block of Hawk and Griffin."""
