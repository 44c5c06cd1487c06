/* ---- core/checks ---- */
