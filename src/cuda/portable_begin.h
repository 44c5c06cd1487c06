#if !defined(TEGROUP_NO_PORTABLE)
