#if !defined(TEGROUP_NO_SM90)
