#endif /* TEGROUP_NO_SM90 */
