/* ---- moe/permutation ---- */
