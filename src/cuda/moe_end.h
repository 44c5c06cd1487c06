#endif /* TEGROUP_NO_MOE */
