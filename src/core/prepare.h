/* ---- core/prepare ---- */
