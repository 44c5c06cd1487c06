#endif /* TEGROUP_H */
