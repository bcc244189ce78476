"""Programs and indexes over HTTP: what is asked, limited, counted and answered. It needs the extra ``[server]``."""
