/* ---- core/explain ---- */
