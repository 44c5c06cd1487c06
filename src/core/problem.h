/* ---- core/problem ---- */
