/* ---- core/tables ---- */
