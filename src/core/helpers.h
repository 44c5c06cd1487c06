/* ---- core/helpers ---- */
