/* ---- core/dispatch ---- */
