def install() -> None: pass
