#endif /* TEGROUP_NO_FP8 */
