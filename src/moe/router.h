/* ---- moe/router ---- */
