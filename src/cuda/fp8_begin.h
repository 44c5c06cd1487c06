#if !defined(TEGROUP_NO_FP8)
