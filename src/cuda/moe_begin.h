#if !defined(TEGROUP_NO_MOE)
