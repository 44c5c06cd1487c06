/* ---- formats/scale_layout ---- */
