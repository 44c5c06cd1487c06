#if !defined(TEGROUP_NO_EP)
