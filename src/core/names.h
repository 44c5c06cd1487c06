/* ---- core/names ---- */
