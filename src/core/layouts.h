/* ---- core/layouts ---- */
