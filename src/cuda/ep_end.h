#endif /* TEGROUP_NO_EP */
