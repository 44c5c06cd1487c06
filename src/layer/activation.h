/* ---- layer/activation ---- */
