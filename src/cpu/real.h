/* ---- cpu/real ---- */
